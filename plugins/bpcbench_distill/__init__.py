"""Dataset-distillation methods for bpcbench, and the parts they share."""
