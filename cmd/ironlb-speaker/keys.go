package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"
)

// keysEvery is the interval between reads of the key file: a Secret's files are updated after about a minute.
const keysEvery = 10 * time.Second

// readKeys returns the shared keys of the speakers: one per line, the signing one first.
func readKeys(path string) ([][]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no key that the speakers share (--key-file): %w: make one with \"head -c 32 /dev/urandom | base64\" and give it "+
			"to all of them, as Secret ironlb-speaker-keys in the cluster", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the keys that the speakers share (--key-file): %w", err)
	}
	var keys [][]byte
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			keys = append(keys, line)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s (--key-file) holds no key: write one to a line, as \"head -c 32 /dev/urandom | base64\" makes it", path)
	}
	return keys, nil
}

// followKeys passes on the keys when the file has others, until ctx ends. An error is logged once; the previous keys
// stay in use.
func followKeys(ctx context.Context, log *slog.Logger, path string, keys [][]byte, set func([][]byte) error) error {
	ticker := time.NewTicker(keysEvery)
	defer ticker.Stop()
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := readKeys(path)
		if err == nil {
			if slices.EqualFunc(now, keys, bytes.Equal) {
				failed = ""
				continue
			}
			err = set(now)
		}
		switch {
		case err == nil:
			log.Info("change the keys that the speakers share", "keys", len(now))
			keys, failed = now, ""
		case err.Error() != failed:
			log.Error("cannot change the keys that the speakers share; those before stay in use", "error", err)
			failed = err.Error()
		}
	}
}
