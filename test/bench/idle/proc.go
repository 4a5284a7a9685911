package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// thread is the state of a thread in /proc.
type thread struct {
	name   string
	cpu    time.Duration
	yields uint64 // voluntary context switches
}

// threads returns the threads of a process by their number.
func threads(pid int) (map[int]thread, error) {
	dirs, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return nil, err
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("process %d has ended", pid)
	}
	all := make(map[int]thread, len(dirs))
	for _, dir := range dirs {
		tid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return nil, err
		}
		t, err := readThread(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		all[tid] = t
	}
	return all, nil
}

func readThread(dir string) (t thread, err error) {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return t, err
	}
	sched, err := os.ReadFile(filepath.Join(dir, "schedstat"))
	if err != nil {
		return t, err
	}
	t.name, _ = field(string(status), "Name")
	yields, err := field(string(status), "voluntary_ctxt_switches")
	if err != nil {
		return t, err
	}
	if t.yields, err = strconv.ParseUint(yields, 10, 64); err != nil {
		return t, err
	}
	running, _, _ := strings.Cut(string(sched), " ") // nanoseconds on a core
	ns, err := strconv.ParseInt(running, 10, 64)
	t.cpu = time.Duration(ns)
	return t, err
}

// field returns the value of a line "name: value" of a file in /proc.
func field(text, name string) (string, error) {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("no %s", name)
}

// megabytes returns a value in kB of a file of the process in MB.
func megabytes(pid int, file, name string) (float64, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, file)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	value, err := field(string(text), name)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	n, err := strconv.ParseFloat(strings.TrimSuffix(value, " kB"), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %s: %w", path, name, err)
	}
	return n * 1024 / 1e6, nil
}
