"""A second look at captions that exist already (`data/captions`).

run         every caption looked at, resumable
summary     numbers of pictures and objects, those below the threshold; the worst
"""
