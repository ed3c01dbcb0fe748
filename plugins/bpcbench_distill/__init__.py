"""Dataset-distillation methods for bpcbench, and the parts that methods of that family share."""
