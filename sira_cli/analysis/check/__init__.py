"""A second look at captions that exist already.

captions    their sources: text files next to pictures, files of captions, records of sira
files       a file of captions: its rows and columns, read, and written with other texts
run         every caption looked at, resumable
summary     numbers of pictures and objects, those below the line; the worst
"""
