"""The architectures of the embedded models, for `SGLANG_EXTERNAL_MODEL_PACKAGE`.

With that variable SGLang imports the modules of this package and leaves its own 200 model files alone until another
architecture is asked for.
"""
