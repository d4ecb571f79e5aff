"""Studies: what people are asked about the images of a run or a folder, served as pages, and their answers kept."""
