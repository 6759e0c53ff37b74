"""The course: writing tasks, solving them, grading them, and training on a learner's own code."""
