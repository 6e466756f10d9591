// Loads at the start and at every swap, as programs beside a ConfigMap volume do: a watch on the directory, and a
// reload when an entry named ..data appears. The generation is pinned while it is read: watch DIRECTORY
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// pinned opens the directory that DIRECTORY/..data names and locks it, so that it stays for as long as it is open.
// Where nobody asks for locks, as in a ConfigMap volume, the lock does no harm and the second look still helps.
func pinned(directory string) (*os.File, error) {
	link := filepath.Join(directory, "..data")
	for {
		opened, err := os.Open(link)
		if err != nil {
			return nil, err
		}
		lock := syscall.Flock(int(opened.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		mine, err := opened.Stat()
		current, gone := os.Stat(link)
		if err == nil && gone == nil && lock == nil && os.SameFile(mine, current) {
			return opened, nil
		}
		opened.Close() // it was replaced in between
	}
}

func load(directory string) error {
	config, err := pinned(directory)
	if err != nil {
		return err
	}
	defer config.Close()
	texts := []string{"loaded"}
	for _, name := range []string{"a", "b", "sub/c"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/%s", config.Fd(), name))
		if err != nil {
			return err
		}
		texts = append(texts, strings.TrimSpace(string(text)))
	}
	fmt.Println(strings.Join(texts, " "))
	return nil
}

func main() {
	directory := os.Args[1]
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Fatal(err)
	}
	// The watch first: what is published between the two is loaded twice, not missed.
	if err := watcher.Add(directory); err != nil {
		log.Fatal(err)
	}
	if err := load(directory); err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Fatal(err)
	}
	for {
		select {
		case event := <-watcher.Events:
			if filepath.Base(event.Name) != "..data" || !event.Has(fsnotify.Create) {
				continue
			}
			if err := load(directory); err != nil {
				log.Print(err)
			}
		case err := <-watcher.Errors:
			log.Print(err)
		}
	}
}
