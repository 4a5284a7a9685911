package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// entry is one file, directory or symbolic link of an image.
type entry struct {
	kind     byte // tar.TypeReg, tar.TypeDir or tar.TypeSymlink
	mode     int64
	uid, gid int
	target   string // of a symbolic link
	content  []byte
	file     string // source of the content, if content is nil
	size     int64
	from     string // origin of the entry (package or spec), for errors
}

func (e *entry) open() (io.ReadCloser, error) {
	if e.file != "" {
		return os.Open(e.file)
	}
	return io.NopCloser(bytes.NewReader(e.content)), nil
}

func (e *entry) same(o *entry) bool {
	return e.kind == o.kind && e.mode == o.mode && e.uid == o.uid && e.gid == o.gid && e.target == o.target &&
		e.file == o.file && bytes.Equal(e.content, o.content)
}

// tree holds the entries of an image or layer by path, without a leading slash.
type tree struct {
	entries map[string]*entry
	merged  bool // /bin, /sbin and /lib are links into /usr, as Debian installs them
}

func newTree(merged bool) *tree { return &tree{entries: map[string]*entry{}, merged: merged} }

var mergedDirs = []string{"bin", "sbin", "lib", "lib64"}

// clean returns the key of a path.
func (t *tree) clean(p string) string {
	p = strings.TrimPrefix(path.Clean("/"+p), "/")
	if first, _, _ := strings.Cut(p, "/"); t.merged && slices.Contains(mergedDirs, first) {
		p = "usr/" + p
	}
	return p
}

// add adds an entry. Directories may be added more than once; the first one counts.
func (t *tree) add(p string, e *entry) error {
	p = t.clean(p)
	if p == "" {
		return nil
	}
	if have, ok := t.entries[p]; ok {
		if have.kind == tar.TypeDir && e.kind == tar.TypeDir {
			return nil
		}
		if !have.same(e) {
			return fmt.Errorf("/%s is in both %s and %s: remove one", p, have.from, e.from)
		}
		return nil
	}
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		parent, ok := t.entries[dir]
		if !ok {
			t.entries[dir] = &entry{kind: tar.TypeDir, mode: 0o755, from: e.from}
			continue
		}
		if parent.kind != tar.TypeDir {
			return fmt.Errorf("/%s of %s: /%s of %s is not a directory", p, e.from, dir, parent.from)
		}
	}
	t.entries[p] = e
	return nil
}

// remove removes each match of a path.Match pattern, with everything below it, and returns the number of removed
// entries.
func (t *tree) remove(pattern string) int {
	pattern = t.clean(pattern)
	depth := strings.Count(pattern, "/") + 1
	n := 0
	for k := range t.entries {
		parts := strings.SplitN(k, "/", depth+1)
		if len(parts) < depth {
			continue
		}
		if ok, _ := path.Match(pattern, strings.Join(parts[:depth], "/")); ok {
			delete(t.entries, k)
			n++
		}
	}
	return n
}

// merge adds the links from /bin, /sbin and /lib into /usr.
func (t *tree) merge() {
	for _, d := range mergedDirs {
		if _, ok := t.entries["usr/"+d]; ok {
			t.entries[d] = &entry{kind: tar.TypeSymlink, mode: 0o777, target: "usr/" + d, from: "the merged /usr"}
		}
	}
}

// resolve follows symbolic links and returns the entry, or nil if there is none.
func (t *tree) resolve(p string) (string, *entry) {
	rest := strings.Split(strings.Trim(path.Clean("/"+p), "/"), "/")
	at := ""
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		e, ok := t.entries[next]
		if !ok {
			return "", nil
		}
		if e.kind != tar.TypeSymlink {
			at = next
			continue
		}
		if links++; links > 40 {
			return "", nil
		}
		target := e.target
		if !path.IsAbs(target) {
			target = path.Join("/", at, target)
		}
		rest = append(strings.Split(strings.Trim(path.Clean(target), "/"), "/"), rest...)
		at = ""
	}
	return at, t.entries[at]
}

func (t *tree) paths() []string {
	out := make([]string, 0, len(t.entries))
	for p := range t.entries {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// write writes the tree as a tar archive: entries sorted by path, one timestamp, owners by number only.
func (t *tree) write(w io.Writer, when time.Time) error {
	tw := tar.NewWriter(w)
	for _, p := range t.paths() {
		e := t.entries[p]
		h := &tar.Header{Typeflag: e.kind, Name: p, Mode: e.mode, Uid: e.uid, Gid: e.gid, ModTime: when, Linkname: e.target, Format: tar.FormatPAX}
		switch e.kind {
		case tar.TypeDir:
			h.Name += "/"
		case tar.TypeReg:
			h.Size = e.size
		}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("write /%s: %w", p, err)
		}
		if e.kind != tar.TypeReg {
			continue
		}
		r, err := e.open()
		if err != nil {
			return fmt.Errorf("read /%s: %w", p, err)
		}
		_, err = io.Copy(tw, r)
		r.Close()
		if err != nil {
			return fmt.Errorf("write /%s: %w", p, err)
		}
	}
	return tw.Close()
}

// gzip returns the tree as a compressed tar archive.
func (t *tree) gzip(when time.Time) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	err := errors.Join(t.write(z, when), z.Close())
	return b.Bytes(), err
}

// zip returns the files of the tree as a zip archive, whose timestamps begin with 1980.
func (t *tree) zip(when time.Time) ([]byte, error) {
	if first := time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC); when.Before(first) {
		when = first
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, p := range t.paths() {
		e := t.entries[p]
		if e.kind != tar.TypeReg {
			continue
		}
		h := &zip.FileHeader{Name: p, Method: zip.Deflate, Modified: when}
		h.SetMode(fs.FileMode(e.mode))
		w, err := z.CreateHeader(h)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", p, err)
		}
		r, err := e.open()
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(w, r)
		r.Close()
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", p, err)
		}
	}
	err := z.Close()
	return b.Bytes(), err
}
