"""The course: checking and grading of exercises, and training on a learner's own code."""
