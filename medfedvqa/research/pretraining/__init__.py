"""Contrastive pre-training of the bundled backbone on open data (`medfedvqa pretrain`)."""
