package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// stdlib is the name of Go's standard library in an SBOM.
const stdlib = "stdlib"

// licensed are the licenses of a module.
type licensed struct {
	id    string            // SPDX expression, "" if it is not known
	texts map[string]string // of licenses and notices, by their path in the module
}

var (
	licenseFile = regexp.MustCompile(`(?i)^(un)?licen[cs]e|^copying`)
	noticeFile  = regexp.MustCompile(`(?i)^notice|^patents|^copyright`)
)

// licenses returns the licenses of the modules that programs of a module are built from, and of the standard library.
func licenses(ctx context.Context, dir string, paths []string) (map[string]licensed, error) {
	env := []string{"GOFLAGS=", "GOWORK=off"}
	list := append([]string{"list", "-m", "-f", "{{.Path}}\t{{.Dir}}\t{{.Main}}"}, paths...)
	out, err := runEnv(ctx, dir, env, "go", list...)
	if err == nil && strings.Contains(out, "\t\t") { // a module that is not in the cache
		if _, err = runEnv(ctx, dir, env, "go", append([]string{"mod", "download"}, paths...)...); err == nil {
			out, err = runEnv(ctx, dir, env, "go", list...)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("find the modules of %s: %w", dir, err)
	}
	root, err := runEnv(ctx, dir, env, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	all := map[string]licensed{}
	for line := range strings.Lines(out + stdlib + "\t" + strings.TrimSpace(root) + "\ttrue\n") {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if all[f[0]], err = licenseOf(f[1], f[2] == "true"); err != nil {
			return nil, fmt.Errorf("licenses of %s: %w", f[0], err)
		}
	}
	return all, nil
}

// licenseOf reads the licenses in a folder and, unless it is flat, below it.
func licenseOf(dir string, flat bool) (licensed, error) {
	l := licensed{texts: map[string]string{}}
	var ids []string
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != dir && (flat || d.Name() == "testdata" || d.Name() == "vendor"):
			return fs.SkipDir
		case !d.Type().IsRegular() || strings.HasSuffix(d.Name(), ".go") || !licenseFile.MatchString(d.Name()) && !noticeFile.MatchString(d.Name()):
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		l.texts[name] = string(text)
		if filepath.Dir(name) != "." || !licenseFile.MatchString(name) {
			return nil
		}
		if cover := licensecheck.Scan(text); cover.Percent >= 75 {
			for _, m := range cover.Match {
				if !m.IsURL {
					ids = append(ids, m.ID)
				}
			}
		}
		return nil
	})
	slices.Sort(ids)
	l.id = strings.Join(slices.Compact(ids), " AND ")
	return l, err
}

// license sets the licenses of the modules of an image's programs.
func (p *parts) license(ctx context.Context) error {
	p.licenses = map[string]licensed{}
	for _, program := range p.programs {
		dir := p.spec.relative(program.Module)
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); program.Module == "" || errors.Is(err, fs.ErrNotExist) {
			continue // a file, or a program that was built elsewhere (-bin)
		}
		paths := []string{program.info.Main.Path}
		for _, d := range program.info.Deps {
			paths = append(paths, d.Path)
		}
		found, err := licenses(ctx, dir, paths)
		if err != nil {
			return err
		}
		for _, d := range program.info.Deps {
			if d.Replace != nil {
				found[d.Replace.Path] = found[d.Path]
			}
		}
		for _, m := range modulesOf(program, tagOf(p.reference)) {
			p.licenses[m.path] = found[m.path]
			p.notices = append(p.notices, m)
		}
	}
	slices.SortFunc(p.notices, compareModules)
	p.notices = slices.Compact(p.notices)
	return nil
}

// copyright is the content of the file with the licenses of the Go modules of programs, each text once.
func (p parts) copyright() string {
	var list, texts strings.Builder
	users, order := map[[sha256.Size]byte][]string{}, [][sha256.Size]byte{}
	all := map[[sha256.Size]byte]string{}
	for _, m := range p.notices {
		l := p.licenses[m.path]
		fmt.Fprintf(&list, "%s %s: %s\n", m.path, m.version, cmp.Or(l.id, "see below"))
		for _, name := range slices.Sorted(maps.Keys(l.texts)) {
			sum := sha256.Sum256([]byte(l.texts[name]))
			if _, ok := all[sum]; !ok {
				order = append(order, sum)
			}
			all[sum] = l.texts[name]
			users[sum] = append(users[sum], m.path+"/"+name)
		}
	}
	for _, sum := range order {
		fmt.Fprintf(&texts, "\n%s\n%s:\n\n%s\n", strings.Repeat("-", 80), strings.Join(users[sum], ",\n"), strings.TrimSpace(all[sum]))
	}
	return "The programs are built from these Go modules. Their licenses and notices follow.\n\n" + list.String() + texts.String()
}
