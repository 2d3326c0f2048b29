"""What state the machine was in while a number was taken, and which states make the number not count."""
