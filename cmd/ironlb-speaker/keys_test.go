package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	for text, want := range map[string][]string{
		"0123456789abcdef":   {"0123456789abcdef"},
		"\none\r\n two \n\n": {"one", "two"},
		"\n\n":               nil,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := readKeys(file)
		var got []string
		for _, k := range keys {
			got = append(got, string(k))
		}
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: keys %q, %v", text, got, err)
		}
	}
}

// Changes of the key file are followed. An error is logged once, and the previous keys stay in use.
func TestFollowKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var log bytes.Buffer
		var set []string
		ended := make(chan error, 1)
		go func() {
			ended <- followKeys(ctx, slog.New(slog.NewTextHandler(&log, nil)), file, [][]byte{[]byte("first")}, func(keys [][]byte) error {
				if len(keys) > 2 {
					return errors.New("too many")
				}
				set = append(set, string(bytes.Join(keys, []byte("+"))))
				return nil
			})
		}()
		ticks := func() {
			time.Sleep(3*keysEvery + time.Second)
			synctest.Wait()
		}
		ticks()
		write("first\nsecond\n")
		ticks()
		write("1\n2\n3\n")
		ticks()
		write("")
		ticks()
		write("second")
		ticks()
		cancel()
		if err := <-ended; err != nil || !slices.Equal(set, []string{"first+second", "second"}) {
			t.Errorf("set %q, %v", set, err)
		}
		for text, times := range map[string]int{"level=INFO": 2, "too many": 1, "holds no key": 1} {
			if n := strings.Count(log.String(), text); n != times {
				t.Errorf("%d times %q in\n%s", n, text, &log)
			}
		}
	})
}
