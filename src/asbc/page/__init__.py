"""One HTML file that calibrates drivers in a browser, made of the files beside this one."""
