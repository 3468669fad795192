"""Model families on diffusers' components: one folder a family, the same file names in each; `catalog` finds them."""
