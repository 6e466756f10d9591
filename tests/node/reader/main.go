// The consumer whose word the scenarios take: it reads the same set of files again and again in two ways, and counts
// what went wrong. It knows nothing of treeswap, and reads ConfigMap volumes and git-sync's link as well.
//
//	reader [--slow=2ms] DIRECTORY LINK [FILE ...]
//	reader pause                        waits for its end: what holds a Pod's namespaces
//
// All files hold the number of their revision. It takes its time between one file and the next. Through the path: a set with two numbers is `mixed`, which no
// writer can prevent. Through the directory that the link names, opened once and locked: `torn` and `vanished`, which
// treeswap prevents. `absent`: the link did not lead to a directory. A line of JSON for every revision first seen, and
// one with the counts every second and at the end.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type counts struct {
	Reads, Mixed, Torn, Vanished, Absent int
	Last                                 string
	Started                              int64 // of this process, ns since 1970
}

var slow = flag.Duration("slow", 2*time.Millisecond, "pause after each file of a set")

func read(directory string, files []string) (values []string, missing bool) {
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(directory, file))
		if err != nil {
			return values, true
		}
		values = append(values, strings.TrimSpace(string(text)))
		time.Sleep(*slow)
	}
	return values, false
}

func differ(values []string) bool {
	for _, value := range values {
		if value != values[0] {
			return true
		}
	}
	return false
}

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	flag.Parse()
	words := flag.Args()
	if words[0] == "pause" {
		<-end
		return
	}
	directory, link := words[0], filepath.Join(words[0], words[1])
	files := []string{"a", "b", "sub/c"}
	if len(words) > 2 {
		files = words[2:]
	}
	through := directory
	if words[1] != "..data" {
		through = link // git-sync's files are below its link alone
	}
	var now counts
	now.Started = time.Now().UnixNano()
	out := json.NewEncoder(os.Stdout)
	tick := time.NewTicker(time.Second)
	for {
		select {
		case <-end:
			out.Encode(now)
			return
		case <-tick.C:
			out.Encode(now)
		default:
		}
		held, err := os.Open(link)
		if err != nil {
			now.Absent++
			time.Sleep(*slow)
			continue
		}
		locked := syscall.Flock(int(held.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
		mine, _ := held.Stat()
		current, err := os.Stat(link)
		if err != nil {
			now.Absent++
		}
		if !locked || err != nil || !os.SameFile(mine, current) {
			held.Close() // replaced in between: not a reading
			continue
		}
		values, missing := read(fmt.Sprintf("/proc/self/fd/%d", held.Fd()), files)
		held.Close()
		now.Reads++
		switch {
		case missing:
			now.Vanished++
		case differ(values):
			now.Torn++
		case values[0] != now.Last:
			now.Last = values[0]
			fmt.Printf("{\"Seen\":%q,\"At\":%d}\n", now.Last, time.Now().UnixNano())
		}
		if values, missing := read(through, files); missing || differ(values) {
			now.Mixed++
		}
	}
}
