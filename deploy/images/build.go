package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// builder builds images.
type builder struct {
	apt       *apt
	programs  *programs
	log       *progress
	out       string
	when      time.Time // the timestamp of all files
	tool      string    // hash of this program
	registry  string
	tag       string
	commit    string // commit in the programs and the labels
	refs      map[string]string
	platforms []string
	layout    bool
	made      []parts // of the images that were not up to date
}

// unknownCommit is the commit of a build without -commit.
const unknownCommit = "unknown"

var validCommit = regexp.MustCompile(`^[A-Za-z0-9.-]+$`)

// state of an image in the output folder.
type state struct {
	Platforms map[string]platformState `json:"platforms"`
	Packages  []packageState           `json:"packages,omitempty"` // of the first platform
	Index     string                   `json:"index,omitempty"`
}

type platformState struct {
	Input  string `json:"input"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// packageState is one package of an image, for the documentation.
type packageState struct {
	Name     string   `json:"name"`
	KiB      int      `json:"kib"`      // as the package states it, before files are left out
	NeededBy []string `json:"neededBy"` // packages of the image that depend on it
}

// all builds the images of specs, and reports each.
func (b *builder) all(ctx context.Context, specs []*Spec) error {
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return fmt.Errorf("make the output folder: %w", err)
	}
	unlock, err := lock(ctx, b.log, filepath.Join(b.out, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	for n := range b.refs {
		if !slices.ContainsFunc(specs, func(s *Spec) bool { return s.Name == n }) {
			return fmt.Errorf("-ref %s=...: no spec has this name", n)
		}
	}
	for _, s := range specs {
		if err := b.image(ctx, s); err != nil {
			return fmt.Errorf("image %s: %w", s.Name, err)
		}
	}
	return nil
}

// reference returns the full name of a spec's image.
func (b *builder) reference(s *Spec) (string, error) {
	ref := b.registry + "/" + s.Name + ":" + b.tag
	if s.Reference != "" {
		ref = s.Reference
	}
	if r, ok := b.refs[s.Name]; ok {
		ref = r
	}
	if _, err := name.NewTag(ref, name.StrictValidation); err != nil {
		return "", fmt.Errorf("reference %q: %w: write REGISTRY/NAME:TAG; a name without a registry belongs to a public hub", ref, err)
	}
	return ref, nil
}

// image builds one spec's image for all platforms, or finds that it is up to date.
func (b *builder) image(ctx context.Context, s *Spec) error {
	ref, err := b.reference(s)
	if err != nil {
		return err
	}
	wanted := s.Platforms
	if len(b.platforms) > 0 {
		wanted = b.platforms
		for _, p := range wanted {
			if !slices.Contains(s.Platforms, p) {
				return fmt.Errorf("-platform %s: the spec has only %s", p, strings.Join(s.Platforms, ", "))
			}
		}
	}
	var all []parts
	now := state{Platforms: map[string]platformState{}}
	for _, platform := range wanted {
		p, err := b.gather(ctx, s, ref, platform)
		if err != nil {
			return err
		}
		all = append(all, p)
		now.Platforms[platform] = platformState{Input: p.input(b)}
	}
	if have, ok := b.upToDate(s, now); ok {
		for _, platform := range wanted {
			b.report(s, platform, ref, have.Platforms[platform], "unchanged")
		}
		return nil
	}
	tmp, err := os.MkdirTemp(b.out, ".build-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var images []*image
	for _, p := range all {
		var img *image
		err := b.log.long("assemble "+s.Name+" for "+p.platform, func() (err error) {
			img, err = b.assemble(ctx, p, tmp)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p.platform, err)
		}
		images, b.made = append(images, img), append(b.made, img.parts)
		if err := writeArchive(img, b.archive(s, p.platform), b.when); err != nil {
			return err
		}
		now.Platforms[p.platform] = platformState{Input: p.input(b), Digest: img.digest.String(), Size: img.size}
	}
	now.Packages = neededBy(images[0].installed)
	if b.layout {
		if now.Index, err = b.writeLayout(ref, images); err != nil {
			return err
		}
	}
	data, err := json.Marshal(now)
	if err != nil {
		return err
	}
	if err := writeFile(b.stateFile(s), data); err != nil {
		return err
	}
	for _, img := range images {
		b.report(s, img.platform, ref, now.Platforms[img.platform], fmt.Sprintf("%d packages, %d ELF files", len(img.installed), img.elfFiles))
	}
	return nil
}

func (b *builder) report(s *Spec, platform, ref string, st platformState, remark string) {
	b.log.printf("%s %s %s %.1f MB compressed (%s)", ref, platform, st.Digest, float64(st.Size)/1e6, remark)
}

func (b *builder) archive(s *Spec, platform string) string {
	return filepath.Join(b.out, s.Name+"-"+strings.ReplaceAll(platform, "/", "-")+".tar")
}

func (b *builder) sbomFile(s *Spec, platform string) string {
	return strings.TrimSuffix(b.archive(s, platform), ".tar") + ".spdx.json"
}

func (b *builder) stateFile(s *Spec) string { return filepath.Join(b.out, "."+s.Name+".json") }

// upToDate reports whether the output was made from the same input, and returns its state.
func (b *builder) upToDate(s *Spec, now state) (state, bool) {
	var have state
	data, err := os.ReadFile(b.stateFile(s))
	if err != nil || json.Unmarshal(data, &have) != nil || len(have.Platforms) != len(now.Platforms) {
		return have, false
	}
	for platform, n := range now.Platforms {
		if have.Platforms[platform].Input != n.Input {
			return have, false
		}
		if _, err := os.Stat(b.archive(s, platform)); err != nil {
			return have, false
		}
		if _, err := os.Stat(b.sbomFile(s, platform)); b.layout && err != nil {
			return have, false
		}
	}
	if b.layout && (have.Index == "" || !b.inLayout(have.Index)) {
		return have, false
	}
	return have, true
}

type listFlag []string

func (l *listFlag) String() string { return strings.Join(*l, ",") }
func (l *listFlag) Set(v string) error {
	*l = append(*l, strings.Split(v, ",")...)
	return nil
}

// newBuilder returns a builder as flags set it up, and the specs. The flags of fs are parsed, too.
func newBuilder(fs *flag.FlagSet, args []string, log *progress) (*builder, []*Spec, error) {
	var (
		out       = fs.String("out", "bin/images", "`folder` for the images")
		cache     = fs.String("cache", "", "`folder` for packages and programs (default: ironlb/images in the user's cache folder)")
		sources   = fs.String("sources", "", "`file` with apt sources (default: the Debian sources of this machine)")
		update    = fs.Bool("update", false, "update the package indices, even if they are newer than a day")
		registry  = fs.String("registry", "localhost/ironlb", "`registry` and path in the names of images")
		tag       = fs.String("tag", "v0.1.0", "`tag` of images")
		commit    = fs.String("commit", unknownCommit, "`commit` of the sources, for the programs and the label")
		bin       = fs.String("bin", "", "`folder` with programs for this machine's platform that are built already")
		layout    = fs.Bool("layout", true, "write the OCI layout with SBOMs next to the archives")
		selection listFlag
		refs      listFlag
	)
	fs.Var(&selection, "platform", "`platform` to build for, for example linux/amd64; repeatable (default: those of the spec)")
	fs.Var(&refs, "ref", "`NAME=REFERENCE`: full name of one image; repeatable")
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "use: images %s [flags] SPEC...\n", fs.Name())
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return nil, nil, err
	}
	specs, err := readSpecs(fs.Args())
	if err != nil {
		return nil, nil, err
	}
	when, err := epoch(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return nil, nil, err
	}
	if !validCommit.MatchString(*commit) {
		return nil, nil, fmt.Errorf("-commit %s: write letters, digits, dots and dashes, as git describe does", *commit)
	}
	if *cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, nil, fmt.Errorf("find the cache folder: %w: set HOME or -cache", err)
		}
		*cache = filepath.Join(dir, "ironlb", "images")
	}
	if *cache, err = filepath.Abs(*cache); err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(*cache, 0o755); err != nil {
		return nil, nil, fmt.Errorf("make the cache folder: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	tool, err := hashFile(self)
	if err != nil {
		return nil, nil, err
	}
	b := &builder{
		apt:      &apt{dir: filepath.Join(*cache, "apt"), sources: *sources, update: *update, log: log},
		programs: &programs{dir: filepath.Join(*cache, "bin"), bin: *bin, log: log},
		log:      log, out: *out, when: when, tool: tool,
		registry: strings.TrimRight(*registry, "/"), tag: *tag, commit: *commit,
		refs: map[string]string{}, platforms: selection, layout: *layout,
	}
	for _, r := range refs {
		n, ref, ok := strings.Cut(r, "=")
		if !ok || n == "" || ref == "" {
			return nil, nil, fmt.Errorf("-ref %s: write NAME=REFERENCE", r)
		}
		b.refs[n] = ref
	}
	return b, specs, nil
}

// epoch returns the timestamp of all files: 0, or SOURCE_DATE_EPOCH.
func epoch(text string) (time.Time, error) {
	if text == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH=%s: write seconds since 1970", text)
	}
	return time.Unix(n, 0).UTC(), nil
}

func build(ctx context.Context, args []string, log *progress) error {
	b, specs, err := newBuilder(flag.NewFlagSet("build", flag.ContinueOnError), args, log)
	if err != nil {
		return err
	}
	return b.all(ctx, specs)
}
