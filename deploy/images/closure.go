package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

func openFile(name string) (*os.File, error) { return os.Open(name) }

var machines = map[string]elf.Machine{"linux/amd64": elf.EM_X86_64, "linux/arm64": elf.EM_AARCH64}

// checkClosure verifies that each program, library and script of a tree can start: its machine type is that of the
// platform, and the tree contains its loader, libraries and interpreter. It returns the number of ELF files checked.
func checkClosure(t *tree, platform string) (int, error) {
	var errs []error
	n := 0
	for _, p := range t.paths() {
		e := t.entries[p]
		if e.kind == tar.TypeSymlink {
			if _, to := t.resolve(p); to == nil && !allowedDangling(e.target) {
				errs = append(errs, fmt.Errorf("/%s (%s): link to %s, which is not in the image", p, e.from, e.target))
			}
			continue
		}
		if e.kind != tar.TypeReg {
			continue
		}
		head, err := e.head(256)
		if err != nil {
			return n, fmt.Errorf("/%s: %w", p, err)
		}
		switch {
		case leading(head, elf.ELFMAG):
			n++
			if err := checkELF(t, p, e, platform); err != nil {
				errs = append(errs, fmt.Errorf("/%s (%s): %w", p, e.from, err))
			}
		case leading(head, "#!") && e.mode&0o111 != 0:
			if err := checkScript(t, head); err != nil {
				errs = append(errs, fmt.Errorf("/%s (%s): %w", p, e.from, err))
			}
		}
	}
	return n, errors.Join(errs...)
}

// allowedDangling reports whether a link's target is made at run time.
func allowedDangling(target string) bool {
	for _, dir := range []string{"/proc/", "/run/", "/dev/", "/etc/alternatives/"} {
		if strings.HasPrefix(target, dir) {
			return true
		}
	}
	return false
}

func checkScript(t *tree, head []byte) error {
	line, _, _ := bytes.Cut(head[2:], []byte("\n"))
	f := strings.Fields(string(line))
	if len(f) == 0 {
		return errors.New("script without an interpreter")
	}
	if f[0] == "/usr/bin/env" && len(f) > 1 {
		f[0] = "/usr/bin/" + f[1]
	}
	if _, e := t.resolve(f[0]); e == nil {
		return fmt.Errorf("its interpreter %s is not in the image: add the package, or list the script in debian.remove", f[0])
	}
	return nil
}

func checkELF(t *tree, p string, e *entry, platform string) error {
	r, closeFile, err := e.readerAt()
	if err != nil {
		return err
	}
	defer closeFile()
	f, err := elf.NewFile(r)
	if err != nil {
		return err
	}
	if f.Machine != machines[platform] {
		return fmt.Errorf("is for %s, not for %s", f.Machine, platform)
	}
	var errs []error
	for _, prog := range f.Progs {
		if prog.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, prog.Filesz)
		if _, err := prog.ReadAt(name, 0); err != nil {
			return err
		}
		if loader := string(bytes.TrimRight(name, "\x00")); !t.has(loader) {
			errs = append(errs, fmt.Errorf("its loader %s is not in the image: add the package libc6", loader))
		}
	}
	libs, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	dirs := libraryDirs(f, p, platform)
	for _, lib := range libs {
		if !slices.ContainsFunc(dirs, func(d string) bool { return t.has(path.Join(d, lib)) }) {
			errs = append(errs, fmt.Errorf("its library %s is not in the image: add the package that has it", lib))
		}
	}
	return errors.Join(errs...)
}

// libraryDirs are the folders that the loader searches for a file's libraries, without a cache of its own.
func libraryDirs(f *elf.File, p, platform string) []string {
	var dirs []string
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		lists, err := f.DynString(tag)
		if err != nil {
			continue
		}
		for _, list := range lists {
			for dir := range strings.SplitSeq(list, ":") {
				origin := "/" + path.Dir(p)
				dirs = append(dirs, strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin).Replace(dir))
			}
		}
	}
	triplet := platforms[platform].triplet
	return append(dirs, "/lib/"+triplet, "/usr/lib/"+triplet, "/lib", "/usr/lib", "/lib64", "/usr/lib64")
}

func (t *tree) has(p string) bool {
	_, e := t.resolve(p)
	return e != nil && e.kind == tar.TypeReg
}
