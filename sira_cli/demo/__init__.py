"""The drawn world, and decoders' texts about it: no downloads.

scenes           kinds of places and objects (`world.json`), scenes from seeds, and their pictures
questions        captions, the objects that a text mentions, and POPE-style questions about scenes
measure          decoders on scenes: their texts, counts, figures and tables
export           scenes as the files of POPE, COCO and AMBER
labelled         questions and captions with their ground truth, for the calibrations
model/           the bundled checkpoint with its card; `tools/` makes it
calibrations/    the methods' parameters for the checkpoint
"""
