"""The drawn world, and what is measured on it: nothing to download.

world            kinds of places and objects: colours, what goes with what (the data lie in `world.json`)
scenes           a scene's exact content from a seed, and its picture
language         captions, questions, and the objects that a text mentions
questions        POPE-style questions about scenes
measure          decoders on scenes: what they say, counted
scene_report     the figures of decoders, and their tables
cost             what a caption costs under each method
chosen           the settings of each method, chosen on validation scenes
comparison       all methods side by side: figures, settings, cost
word_scores      how well the scores of words tell true objects from hallucinated ones
export           scenes as the files of POPE, COCO and AMBER
model/           the bundled checkpoint with its card; `tools/` makes it
compared/        the methods' settings and figures that the documents show
"""
