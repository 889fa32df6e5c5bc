"""The program that runs on the device, and how it is built."""
