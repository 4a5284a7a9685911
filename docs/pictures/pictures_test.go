package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// maxSize is the limit for a picture, so that pages load quickly.
const maxSize = 30_000

// TestCommitted: the committed pictures are those of the measured tables, and no others are here.
func TestCommitted(t *testing.T) {
	all, err := pictures(os.DirFS("../development"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.svg")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(all) {
		t.Errorf("the folder has %q, the program draws %d pictures", files, len(all))
	}
	for name, want := range all {
		have, err := os.ReadFile(name)
		if err != nil || string(have) != want {
			t.Errorf("%s is not what the program draws (%v): run go run ./docs/pictures", name, err)
		}
		if len(want) > maxSize {
			t.Errorf("%s has %d bytes, more than %d", name, len(want), maxSize)
		}
	}
}

// TestWellFormed: each picture is XML with its texts as text and a description, and has colours for both themes.
func TestWellFormed(t *testing.T) {
	all, err := pictures(os.DirFS("../development"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range all {
		elements := map[string]int{}
		d := xml.NewDecoder(strings.NewReader(text))
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e, is := token.(xml.StartElement); is {
				elements[e.Name.Local]++
			}
		}
		if elements["text"] < 5 || elements["title"] != 1 || elements["desc"] != 1 {
			t.Errorf("%s has the elements %v", name, elements)
		}
		if !strings.Contains(text, "prefers-color-scheme:dark") {
			t.Errorf("%s has no colours for dark pages", name)
		}
	}
}

// TestFollowsMeasurements: another figure in a table changes the picture, and a missing one is an error that names it.
func TestFollowsMeasurements(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("../development", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	draw := func(performance string) (map[string]string, error) {
		return pictures(fstest.MapFS{
			"performance.md": {Data: []byte(performance)}, "connections.md": {Data: []byte(read("connections.md"))},
		})
	}
	performance := read("performance.md")
	row := "| IronLB, profile `standard` (default) | "
	if !strings.Contains(performance, row) {
		t.Fatalf("performance.md has no row %q", row)
	}
	all, err := draw(strings.Replace(performance, row, row+"1", 1))
	if err != nil {
		t.Fatal(err)
	}
	if before, err := draw(performance); err != nil || before["failover.svg"] == all["failover.svg"] {
		t.Errorf("another median changes nothing (%v)", err)
	}
	for what, text := range map[string]string{
		"row":    strings.ReplaceAll(performance, row, "| another product | "),
		"figure": strings.Replace(performance, row, row+"x", 1),
		"table":  strings.ReplaceAll(performance, "| owner powered off", "| something else"),
	} {
		if _, err := draw(text); err == nil || !strings.Contains(err.Error(), "performance.md") {
			t.Errorf("without its %s: error %v, want one that names the file", what, err)
		}
	}
}
