"""Bridges to other libraries, one a module, each imported where it is wanted.

:mod:`~fnpipe.adapters.torchvision`, :mod:`~fnpipe.adapters.ultralytics`,
:mod:`~fnpipe.adapters.huggingface`, :mod:`~fnpipe.adapters.lightning`; and
:mod:`~fnpipe.adapters.foreign` for code of others as a stage.
"""
