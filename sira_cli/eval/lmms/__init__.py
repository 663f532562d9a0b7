"""A model of lmms-eval: `python -m lmms_eval --model sira --model_args preset=llava-1.5-7b,method=sira`.

entry       lmms-eval finds the model here, by entry point; nothing else is imported before it asks
model       the classes that it calls, the only module that imports it
requests    its messages and settings in sira's terms
answers     texts and losses of such requests, in batches
"""
