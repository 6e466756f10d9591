// Loads at the start and at every swap, as programs beside a ConfigMap volume do: a watch on the directory, and a
// reload when an entry named ..data appears. The generation is pinned while it is read: watch ROOT
//
// On a ConfigMap volume, where nobody asks for locks, the pin does no harm, and reads one generation as well.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"example.com/consumers/pinned"
	"github.com/fsnotify/fsnotify"
)

func load(root string) error {
	config, err := pinned.Open(root)
	if err != nil {
		return err
	}
	defer config.Close()
	texts := []string{"loaded"}
	for _, name := range []string{"a", "b", "sub/c"} {
		text, err := os.ReadFile(pinned.Path(config, name))
		if err != nil {
			return err
		}
		texts = append(texts, strings.TrimSpace(string(text)))
	}
	fmt.Println(strings.Join(texts, " "))
	return nil
}

func main() {
	root := os.Args[1]
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Fatal(err)
	}
	// The watch first: what is published between the two is loaded twice, not missed.
	if err := watcher.Add(root); err != nil {
		log.Fatal(err)
	}
	if err := load(root); err != nil {
		log.Fatal(err)
	}
	for {
		select {
		case event := <-watcher.Events:
			if filepath.Base(event.Name) != "..data" || !event.Has(fsnotify.Create) {
				continue
			}
			if err := load(root); err != nil {
				log.Print(err)
			}
		case err := <-watcher.Errors:
			log.Print(err)
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				continue
			}
			// The event for ..data may be among those that were lost.
			if err := load(root); err != nil {
				log.Print(err)
			}
		}
	}
}
