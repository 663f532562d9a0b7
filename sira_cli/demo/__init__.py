"""The drawn world, and decoders' texts about it: no downloads.

world            kinds of places and objects: colours, co-occurrence (the data are in `world.json`)
scenes           a scene's exact content from a seed, and its picture
language         captions, questions, and the objects that a text mentions
questions        POPE-style questions about scenes
measure          decoders on scenes: counts of their texts
scene_report     the figures of decoders, and their tables
export           scenes as the files of POPE, COCO and AMBER
model/           the bundled checkpoint with its card; `tools/` makes it
calibrations/    the methods' parameters for the checkpoint
"""
