package main

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// programs builds Go programs.
type programs struct {
	dir string // output folder
	bin string // a folder with prebuilt programs for this machine's platform; "" for none
	log *progress
}

// built is a program of an image and its file.
type built struct {
	Program
	file string
	sum  string
	info *buildinfo.BuildInfo // nil if the program was not built with Go
}

// stamp holds the values of ${VERSION} and ${COMMIT} in a program's ldflags.
type stamp struct{ version, commit string }

func (s stamp) expand(ldflags string) string {
	return strings.NewReplacer("${VERSION}", s.version, "${COMMIT}", s.commit).Replace(ldflags)
}

// build returns the programs of a spec for a platform. Go rebuilds only outdated ones.
func (b *programs) build(ctx context.Context, s *Spec, v stamp, platform string) ([]built, error) {
	var out []built
	for _, p := range s.Programs {
		file, err := b.one(ctx, s, p, v, platform)
		if err != nil {
			return nil, fmt.Errorf("program %s for %s: %w", p.Path, platform, err)
		}
		sum, err := hashFile(file)
		if err != nil {
			return nil, fmt.Errorf("program %s for %s: %w", p.Path, platform, err)
		}
		info, err := buildinfo.ReadFile(file)
		if err != nil && p.Module != "" {
			return nil, fmt.Errorf("program %s for %s: %w", p.Path, platform, err)
		}
		out = append(out, built{Program: p, file: file, sum: sum, info: info})
	}
	return out, nil
}

func (b *programs) one(ctx context.Context, s *Spec, p Program, v stamp, platform string) (string, error) {
	if b.bin != "" && platform == runtime.GOOS+"/"+runtime.GOARCH {
		file := filepath.Join(b.bin, path.Base(p.Path))
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	if p.File != "" {
		return s.relative(p.File), nil
	}
	module, err := filepath.Abs(s.relative(p.Module))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(module, "go.mod")); err != nil {
		return "", fmt.Errorf("module: %s has no go.mod: %w", s.relative(p.Module), err)
	}
	// The path distinguishes checkouts and settings; go itself compares the sources.
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []any{module, p.Package, p.Tags, p.Ldflags}))
	file := filepath.Join(b.dir, strings.ReplaceAll(platform, "/", "-"), hex.EncodeToString(sum[:6]), path.Base(p.Path))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, b.log, filepath.Join(filepath.Dir(file), ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	// Only ldflags name the commit, so that the program is the same with and without a .git folder.
	args := []string{
		"build", "-trimpath", "-buildvcs=false", "-tags=" + strings.Join(p.Tags, ","), "-ldflags=" + v.expand(p.Ldflags),
		"-o", file, p.Package,
	}
	system, machine, _ := strings.Cut(platform, "/")
	env := []string{
		"CGO_ENABLED=0", "GOOS=" + system, "GOARCH=" + machine, "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=",
		"GOAMD64=v1", "GOARM64=v8.0", "GO111MODULE=on",
	}
	what := fmt.Sprintf("build %s for %s", path.Base(p.Path), platform)
	err = b.log.long(what, func() error {
		_, err := runEnv(ctx, module, env, "go", args...)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("%s in %s: %w", what, s.relative(p.Module), err)
	}
	return file, nil
}

// moduleDir returns the folder of a module that another one requires, and downloads the module if it is missing.
func moduleDir(ctx context.Context, s *Spec, m *ModuleFile) (string, error) {
	dir, env := s.relative(m.Module), []string{"GOFLAGS=", "GOWORK=off"}
	list := func() (string, error) {
		out, err := runEnv(ctx, dir, env, "go", "list", "-m", "-f", "{{.Dir}}", m.Name)
		return strings.TrimSpace(out), err
	}
	found, err := list()
	if err == nil && found == "" {
		if _, err = runEnv(ctx, dir, env, "go", "mod", "download", m.Name); err == nil {
			found, err = list()
		}
	}
	if err == nil && found == "" {
		err = errors.New("it is not required there")
	}
	if err != nil {
		return "", fmt.Errorf("find module %s of %s: %w", m.Name, dir, err)
	}
	return found, nil
}
