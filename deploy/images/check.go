package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// check builds images twice, with separate folders for programs and output, and compares all files.
func check(ctx context.Context, args []string, log *progress) error {
	// With -cold as its first flag, the second build compiles everything, with an empty build cache.
	cold := len(args) > 0 && args[0] == "-cold"
	if cold {
		args = args[1:]
	}
	tmp, err := os.MkdirTemp("", "images-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var outs []string
	for _, run := range []string{"first", "second"} {
		if cold && run == "second" {
			if err := os.Setenv("GOCACHE", filepath.Join(tmp, "gocache")); err != nil {
				return err
			}
		}
		b, specs, err := newBuilder(flag.NewFlagSet("check", flag.ContinueOnError), args, log)
		if err != nil {
			return err
		}
		b.out, b.programs.dir = filepath.Join(tmp, run), filepath.Join(tmp, run+"-bin")
		log.printf("%s build", run)
		if err := b.all(ctx, specs); err != nil {
			return err
		}
		outs = append(outs, b.out)
	}
	n, err := compare(outs[0], outs[1])
	if err != nil {
		return fmt.Errorf("two builds of the same input differ:\n%w", err)
	}
	log.printf("both builds are the same: %d files", n)
	return nil
}

// compare returns the number of files in two folders, and an error for each file that differs.
func compare(a, b string) (int, error) {
	first, err := hashes(a)
	if err != nil {
		return 0, err
	}
	second, err := hashes(b)
	if err != nil {
		return 0, err
	}
	names := slices.Sorted(maps.Keys(first))
	for n := range second {
		if _, ok := first[n]; !ok {
			names = append(names, n)
		}
	}
	var errs []error
	for _, n := range names {
		if first[n] != second[n] {
			errs = append(errs, fmt.Errorf("%s: sha256 %q and %q", n, first[n], second[n]))
		}
	}
	return len(names), errors.Join(errs...)
}

// hashes returns the hash of each file below a folder.
func hashes(dir string) (map[string]string, error) {
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		out[name], err = hashFile(p)
		return err
	})
	return out, err
}
