"""What the field claims of serving images, as ratios of this machine or as counts."""
