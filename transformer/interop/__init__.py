"""Pretrained weights of other codebases: from their files to a workdir, and back."""
