module example.com/consumers

go 1.23

require (
	github.com/fsnotify/fsnotify v1.9.0
	golang.org/x/sys v0.13.0
)
