"""Checkpoints: sharded, committed by their manifest, saved behind training, and read in any layout."""
