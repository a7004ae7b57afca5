"""Commands for researchers: benchmarks, studies, the papers' tables, and the training of backbones."""
