"""For those who grade: graders run in a process of their own, over one folder or a whole class."""
