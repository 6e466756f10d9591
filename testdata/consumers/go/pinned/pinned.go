// Package pinned holds one generation of a root while it is read.
package pinned

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Open pins the generation that ROOT/..data names. Closing the directory, or the end of the process, releases it.
// Where nothing is published yet, it waits.
func Open(root string) (*os.File, error) {
	link := filepath.Join(root, "..data")
	for {
		opened, err := os.OpenFile(link, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if errors.Is(err, fs.ErrNotExist) { // or reaped between the link and the directory
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if err != nil {
			return nil, err
		}
		current, err := lock(opened, link)
		if current {
			return opened, nil
		}
		opened.Close()
		if err != nil {
			return nil, err
		}
	}
}

// lock takes the shared lock and reports whether the link still names the directory that was opened: on a deleted
// directory the lock is granted, too.
func lock(opened *os.File, link string) (bool, error) {
	err := unix.Flock(int(opened.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) { // it is being reaped
		time.Sleep(5 * time.Millisecond)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", link, err)
	}
	mine, err := opened.Stat() // fstat(2): device and inode
	if err != nil {
		return false, err
	}
	named, err := os.Stat(link)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, named), err
}

// Path is where a file of the pinned generation is, for this process. A path through ..data may lead into a newer one.
func Path(generation *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", generation.Fd(), name)
}
