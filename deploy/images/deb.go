package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
)

// notInImages are paths of packages that no program in an image reads. Copyright files stay: the licenses require them.
var notInImages = []string{
	"/usr/share/man", "/usr/share/info", "/usr/share/locale", "/usr/share/lintian", "/usr/share/doc-base", "/usr/share/bug",
	"/usr/share/bash-completion", "/usr/share/initramfs-tools", "/usr/share/menu", "/usr/share/pixmaps", "/usr/share/applications",
	"/usr/share/zsh", "/usr/share/fish", "/usr/share/gcc", "/usr/share/gdb", "/usr/share/apport", "/usr/share/readme",
	"/etc/init.d", "/etc/cron.d", "/etc/cron.daily", "/etc/logrotate.d", "/etc/default", "/etc/pam.d", "/etc/kernel", "/etc/update-motd.d",
	"/lib/systemd", "/usr/lib/systemd", "/usr/lib/sysusers.d", "/usr/lib/tmpfiles.d", "/lib/udev", "/usr/lib/udev",
}

func excluded(p string) bool {
	for _, e := range notInImages {
		if p == e || strings.HasPrefix(p, e+"/") {
			return true
		}
	}
	if doc, ok := strings.CutPrefix(p, "/usr/share/doc/"); ok {
		return strings.Contains(doc, "/") && path.Base(doc) != "copyright"
	}
	return false
}

// installed is a package of an image, for its SBOM.
type installed struct {
	debPackage
	Source, SourceVersion, Summary string
	Depends, Provides              string // as in the control file
	KiB                            int
}

// neededBy lists the packages of an image, each with its dependents.
func neededBy(all []installed) []packageState {
	by, provider := map[string][]string{}, map[string]string{}
	for _, in := range all {
		provider[in.Name] = in.Name
		for name := range dependencies(in.Provides) {
			provider[name] = in.Name
		}
	}
	for _, in := range all {
		for name := range dependencies(in.Depends) {
			p := provider[name]
			if p != "" && p != in.Name && !slices.Contains(by[p], in.Name) {
				by[p] = append(by[p], in.Name)
			}
		}
	}
	var out []packageState
	for _, in := range all {
		slices.Sort(by[in.Name])
		out = append(out, packageState{Name: in.Name, KiB: in.KiB, NeededBy: by[in.Name]})
	}
	return out
}

// dependencies returns the names in a field such as "libc6 (>= 2.34), awk | mawk".
func dependencies(field string) map[string]bool {
	names := map[string]bool{}
	for part := range strings.FieldsFuncSeq(field, func(r rune) bool { return r == ',' || r == '|' }) {
		if f := strings.Fields(part); len(f) > 0 {
			name, _, _ := strings.Cut(f[0], ":")
			names[name] = true
		}
	}
	return names
}

// unpack adds the files of packages to a tree, each with its entry for vulnerability scanners, and returns what it
// unpacked. Scripts of packages do not run.
func unpack(ctx context.Context, t *tree, d *Debian, packages []debPackage) ([]installed, error) {
	var out []installed
	for _, p := range packages {
		in, err := unpackOne(ctx, t, p)
		if err != nil {
			return nil, fmt.Errorf("package %s %s: %w", p.Name, p.Version, err)
		}
		out = append(out, in)
	}
	for _, r := range d.Remove {
		if t.remove(r.Path) == 0 {
			return nil, fmt.Errorf("debian.remove: no package has %s: delete the entry", r.Path)
		}
	}
	return out, nil
}

func unpackOne(ctx context.Context, t *tree, p debPackage) (installed, error) {
	in := installed{debPackage: p}
	fields, text, err := control(ctx, p.File)
	if err != nil {
		return in, err
	}
	in.Summary, in.Provides = fields["Description"], fields["Provides"]
	in.Depends = fields["Depends"] + "," + fields["Pre-Depends"]
	in.KiB, _ = strconv.Atoi(fields["Installed-Size"]) // a package may lack it
	in.Source, in.SourceVersion = p.Name, p.Version
	if s := fields["Source"]; s != "" {
		name, version, versioned := strings.Cut(s, " ")
		in.Source = name
		if versioned {
			in.SourceVersion = strings.Trim(version, "()")
		}
	}
	data, err := run(ctx, "", "dpkg-deb", "--fsys-tarfile", p.File)
	if err != nil {
		return in, err
	}
	if err := unpackTar(t, strings.NewReader(data), "package "+p.Name); err != nil {
		return in, err
	}
	// Scanners read the packages of an image without a package manager from this folder.
	status := &entry{kind: tar.TypeReg, mode: 0o644, content: []byte(text), size: int64(len(text)), from: "package " + p.Name}
	return in, t.add("/var/lib/dpkg/status.d/"+p.Name, status)
}

func unpackTar(t *tree, r io.Reader, from string) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean("/" + h.Name)
		if excluded(name) {
			continue
		}
		e := &entry{kind: h.Typeflag, mode: h.Mode & 0o7777, uid: h.Uid, gid: h.Gid, from: from}
		switch h.Typeflag {
		case tar.TypeDir:
		case tar.TypeSymlink:
			e.mode, e.target = 0o777, h.Linkname
		case tar.TypeLink:
			_, other := t.resolve(t.clean(h.Linkname))
			if other == nil {
				return fmt.Errorf("%s is a hard link to %s, which is not there", name, h.Linkname)
			}
			e = other
		case tar.TypeReg:
			e.content, err = io.ReadAll(tr)
			if err != nil {
				return err
			}
			e.size = int64(len(e.content))
		default:
			return fmt.Errorf("%s is of a kind that images do not get: %c", name, h.Typeflag)
		}
		if err := t.add(name, e); err != nil {
			return err
		}
	}
}

// head returns the first bytes of a regular file.
func (e *entry) head(n int) ([]byte, error) {
	if e.kind != tar.TypeReg {
		return nil, nil
	}
	r, err := e.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	buf := make([]byte, n)
	m, err := io.ReadFull(r, buf)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	return buf[:m], nil
}

// readerAt returns the content of a regular file for random access.
func (e *entry) readerAt() (io.ReaderAt, func(), error) {
	if e.file == "" {
		return bytes.NewReader(e.content), func() {}, nil
	}
	f, err := openFile(e.file)
	if err != nil {
		return nil, nil, err
	}
	return f, func() { f.Close() }, nil
}
