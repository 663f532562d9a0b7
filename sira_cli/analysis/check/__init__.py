"""A second look at captions that exist already.

captions    where they come from: text files beside pictures, files of captions, records of sira
files       a file of captions: its rows and columns, read, and written with other texts
run         every caption looked at, resumable
summary     how many pictures, things, below the line; the worst
"""
