package main

import (
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

//go:embed doc.md.tmpl
var docTemplate string

// docImage is an image as the documentation shows it.
type docImage struct {
	Spec  *Spec
	State state
	Rows  []docRow
}

type docRow struct{ Name, Size, Reason string }

// doc prints docs/reference/images.md from specs and from the images that were built from them.
func doc(args []string) error {
	fs := flag.NewFlagSet("doc", flag.ContinueOnError)
	out := fs.String("out", "bin/images", "`folder` that the images were built into")
	if err := fs.Parse(args); err != nil {
		return err
	}
	specs, err := readSpecs(fs.Args())
	if err != nil {
		return err
	}
	var images []docImage
	for _, s := range specs {
		st, err := readState(filepath.Join(*out, "."+s.Name+".json"))
		if err != nil {
			return fmt.Errorf("image %s: %w: run make images", s.Name, err)
		}
		images = append(images, newDocImage(s, st))
	}
	mb := func(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
	t, err := template.New("doc").Funcs(template.FuncMap{"mb": mb}).Parse(docTemplate)
	if err != nil {
		return err
	}
	var b strings.Builder
	if err := t.Execute(&b, images); err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(strings.TrimRight(b.String(), "\n") + "\n")
	return err
}

func readState(file string) (state, error) {
	var st state
	data, err := os.ReadFile(file)
	if err != nil {
		return st, err
	}
	return st, json.Unmarshal(data, &st)
}

// newDocImage lists the packages that the spec names, and then those that they depend on.
func newDocImage(s *Spec, st state) docImage {
	d := docImage{Spec: s, State: st}
	if s.Debian == nil {
		return d
	}
	sizes, named := map[string]string{}, map[string]bool{}
	for _, p := range st.Packages {
		sizes[p.Name] = fmt.Sprintf("%d KiB", p.KiB)
	}
	for _, p := range s.Debian.Packages {
		named[p.Name] = true
		d.Rows = append(d.Rows, docRow{p.Name, sizes[p.Name], p.Reason})
	}
	for _, p := range st.Packages {
		if !named[p.Name] {
			d.Rows = append(d.Rows, docRow{p.Name, sizes[p.Name], "dependency of " + strings.Join(p.NeededBy, ", ")})
		}
	}
	return d
}
