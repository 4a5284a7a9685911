package main

import (
	"archive/tar"
	"context"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// files adds the programs, files, directories and links of a spec to a tree.
func (p parts) files(t *tree) error {
	s, from := p.spec, "the spec"
	for _, d := range s.Dirs {
		e := &entry{kind: tar.TypeDir, mode: mode(d.Mode, 0o755), from: from}
		if d.Owner != "" {
			e.uid, e.gid = owner(d.Owner)
		}
		if have, ok := t.entries[t.clean(d.Path)]; ok && have.kind == tar.TypeDir {
			t.entries[t.clean(d.Path)] = e
			continue
		}
		if err := t.add(d.Path, e); err != nil {
			return err
		}
	}
	for _, b := range p.programs {
		info, err := os.Stat(b.file)
		if err != nil {
			return err
		}
		err = t.add(b.Path, &entry{kind: tar.TypeReg, mode: 0o755, file: b.file, size: info.Size(), from: from})
		if err != nil {
			return err
		}
	}
	for _, f := range s.Files {
		content := []byte(f.Content)
		if f.From != "" {
			content = p.contents[f.Path]
		}
		if err := t.add(f.Path, regular(mode(f.Mode, 0o644), content, from)); err != nil {
			return err
		}
	}
	if len(p.notices) > 0 {
		if err := t.add(path.Join("/usr/share/doc", s.Name, "copyright"), regular(0o644, []byte(p.copyright()), from)); err != nil {
			return err
		}
	}
	for _, l := range s.Symlinks {
		if err := t.add(l.Path, &entry{kind: tar.TypeSymlink, mode: 0o777, target: l.Target, from: from}); err != nil {
			return err
		}
	}
	return nil
}

// regular returns an entry for a file with a content.
func regular(mode int64, content []byte, from string) *entry {
	return &entry{kind: tar.TypeReg, mode: mode, content: content, size: int64(len(content)), from: from}
}

func (s *Spec) readFrom(ctx context.Context, f File) ([]byte, error) {
	if f.FromModule == nil {
		return os.ReadFile(s.relative(f.From))
	}
	dir, err := moduleDir(ctx, s, f.FromModule)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, filepath.Clean("/"+f.From)))
}

// mode parses an octal mode that validate accepted.
func mode(text string, otherwise int64) int64 {
	if text == "" {
		return otherwise
	}
	m, _ := strconv.ParseInt(text, 8, 64)
	return m
}

// owner parses a "UID:GID" that validate accepted.
func owner(text string) (uid, gid int) {
	u, g, _ := strings.Cut(text, ":")
	uid, _ = strconv.Atoi(u)
	gid, _ = strconv.Atoi(g)
	return uid, gid
}

// without returns the entries of a tree that a base lacks, and their parent directories.
func (t *tree) without(base *tree) *tree {
	out := newTree(t.merged)
	for p, e := range t.entries {
		if b, ok := base.entries[p]; ok && b == e {
			continue
		}
		out.entries[p] = e
		for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
			out.entries[dir] = t.entries[dir]
		}
	}
	return out
}

// clone returns a tree with the same entries.
func (t *tree) clone() *tree {
	out := newTree(t.merged)
	for p, e := range t.entries {
		out.entries[p] = e
	}
	return out
}
