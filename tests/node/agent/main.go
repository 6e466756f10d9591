// The watch of OpenShift's CI agents (ci-operator's configresolver), in our own words, since their module cannot be had
// from Go's module proxy: a watch on the directory that holds a link; whatever happens to an entry of the link's name is
// one event, and each event loads everything anew.
//
//	agent LINK ...    a line for each event: what happened, the link, and where it leads now
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

func main() {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Fatal(err)
	}
	links := map[string]bool{}
	for _, link := range os.Args[1:] {
		links[link] = true
		if err := watcher.Add(filepath.Dir(link)); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("watching")
	for {
		select {
		case event := <-watcher.Events:
			if !links[event.Name] {
				continue
			}
			target, err := os.Readlink(event.Name)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("event", event.Op, event.Name, target)
		case err := <-watcher.Errors:
			log.Fatal(err)
		}
	}
}
