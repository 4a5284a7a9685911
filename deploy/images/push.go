package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// pusher writes images of an OCI layout to a registry, with the credentials of `docker login`.
type pusher struct {
	out      string // folder with the layouts
	registry string // registry and path
	tag      string // of images; if empty, the tag in the layout
	options  []name.Option
	log      *progress
}

func push(ctx context.Context, args []string, log *progress) error {
	flags := flag.NewFlagSet("push", flag.ContinueOnError)
	var (
		out      = flags.String("out", "bin/images", "`folder` that the images were built into")
		registry = flags.String("registry", "", "`registry` and path to push to, for example registry.example.com/ironlb")
		tag      = flags.String("tag", "", "`tag` of the images (default: that of the build; a chart keeps its version)")
		insecure = flags.Bool("insecure", false, "use HTTP where the registry has no HTTPS")
	)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "use: images push -registry REGISTRY[/PATH] [flags] [NAME...]")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *registry == "" {
		return errors.New("push: -registry is missing: write your registry and a path in it, for example registry.example.com/ironlb")
	}
	if host, _, ok := strings.Cut(*registry, "/"); host == "localhost" && ok {
		return fmt.Errorf("push: %s is the name for images that are in no registry: write your registry and a path in it", *registry)
	}
	p := &pusher{out: *out, registry: strings.TrimRight(*registry, "/"), tag: *tag, log: log}
	if *insecure {
		p.options = append(p.options, name.Insecure)
	}
	return p.push(ctx, flags.Args())
}

// push pushes the named images, or all, each with its platforms and its SBOMs. Of a release it pushes the chart, too, and
// last the signatures.
func (p *pusher) push(ctx context.Context, names []string) error {
	done, err := p.from(ctx, "oci", names)
	if err != nil {
		return err
	}
	for _, n := range names {
		if !slices.Contains(done, n) {
			return fmt.Errorf("push %s: %s has no such image", n, p.out)
		}
	}
	if _, err := os.Stat(filepath.Join(p.out, signaturesDir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err = p.from(ctx, signaturesDir, names)
	return err
}

// from pushes what a layout lists under the names, and returns those that it found.
func (p *pusher) from(ctx context.Context, dir string, names []string) ([]string, error) {
	at, err := layout.FromPath(filepath.Join(p.out, dir))
	if err != nil {
		return nil, fmt.Errorf("no OCI layout in %s: run make images: %w", p.out, err)
	}
	root, err := at.ImageIndex()
	if err != nil {
		return nil, err
	}
	list, err := root.IndexManifest()
	if err != nil {
		return nil, err
	}
	var done []string
	for _, d := range list.Manifests {
		ref := d.Annotations[annotationRefName]
		image, _, _ := strings.Cut(path.Base(ref), ":")
		if ref == "" || (len(names) > 0 && !slices.Contains(names, image)) {
			continue
		}
		if err := p.one(ctx, root, list, d, ref); err != nil {
			return nil, fmt.Errorf("push %s: %w", image, err)
		}
		done = append(done, image)
	}
	return done, nil
}

func (p *pusher) one(ctx context.Context, root v1.ImageIndex, list *v1.IndexManifest, d v1.Descriptor, ref string) error {
	image, tag, _ := strings.Cut(path.Base(ref), ":")
	if p.tag != "" && d.MediaType.IsIndex() {
		tag = p.tag
	}
	to, err := name.NewTag(p.registry+"/"+image+":"+tag, append([]name.Option{name.StrictValidation}, p.options...)...)
	if err != nil {
		return fmt.Errorf("%w: write REGISTRY/PATH and a tag", err)
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	err = p.log.long("push "+to.String(), func() error {
		if !d.MediaType.IsIndex() {
			artifact, err := root.Image(d.Digest)
			if err != nil {
				return err
			}
			return remote.Write(to, artifact, options...)
		}
		index, err := root.ImageIndex(d.Digest)
		if err != nil {
			return err
		}
		return remote.WriteIndex(to, index, options...)
	})
	if err != nil {
		return err
	}
	sboms := 0
	for _, s := range list.Manifests {
		if s.Annotations[annotationSBOMOf] != ref {
			continue
		}
		artifact, err := root.Image(s.Digest)
		if err != nil {
			return err
		}
		// The registry, or its fallback tag, lists it as a referrer of its subject.
		if err := remote.Write(to.Context().Digest(s.Digest.String()), artifact, options...); err != nil {
			return fmt.Errorf("its SBOM: %w", err)
		}
		sboms++
	}
	if sboms == 0 {
		p.log.printf("pushed %s@%s", to, d.Digest)
	} else {
		p.log.printf("pushed %s@%s with %d SBOMs", to, d.Digest, sboms)
	}
	return nil
}
