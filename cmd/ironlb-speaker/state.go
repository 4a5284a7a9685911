package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// stateFile returns a file in stateDir, empty for none.
func (o options) stateFile(prefix string) string {
	if o.config.StateDir == "" {
		return ""
	}
	return filepath.Join(o.config.StateDir, prefix+filepath.Base(o.nodeName))
}

// removeState removes the speakers' files from a directory, and nothing else.
func removeState(dir string, log *slog.Logger) error {
	if dir == "" {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(dir, calicoPrefix+"*"))
	errs := []error{err}
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		log.Info("delete file", "file", file, "reason", "Cleanup")
	}
	return errors.Join(errs...)
}
