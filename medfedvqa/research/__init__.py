"""What researchers run: benchmarks, studies, the tables of the papers, and the training of backbones."""
