package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	mediaTypeSPDX  = "application/spdx+json"
	mediaTypeEmpty = "application/vnd.oci.empty.v1+json"
	// annotationSBOMOf is the reference of the image that an SBOM in the layout describes.
	annotationSBOMOf = "io.ironlb.sbom-of"
)

// The subset of SPDX 2.3 that an SBOM uses: https://spdx.github.io/spdx-spec/v2.3/
type spdxDocument struct {
	SPDXVersion       string             `json:"spdxVersion"`
	DataLicense       string             `json:"dataLicense"`
	SPDXID            string             `json:"SPDXID"`
	Name              string             `json:"name"`
	DocumentNamespace string             `json:"documentNamespace"`
	CreationInfo      spdxCreation       `json:"creationInfo"`
	Packages          []spdxPackage      `json:"packages"`
	Relationships     []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	SPDXID           string          `json:"SPDXID"`
	Name             string          `json:"name"`
	VersionInfo      string          `json:"versionInfo,omitempty"`
	Supplier         string          `json:"supplier,omitempty"`
	DownloadLocation string          `json:"downloadLocation"`
	FilesAnalyzed    bool            `json:"filesAnalyzed"`
	SourceInfo       string          `json:"sourceInfo,omitempty"`
	Summary          string          `json:"summary,omitempty"`
	Purpose          string          `json:"primaryPackagePurpose,omitempty"`
	Checksums        []spdxChecksum  `json:"checksums,omitempty"`
	LicenseConcluded string          `json:"licenseConcluded"`
	LicenseDeclared  string          `json:"licenseDeclared"`
	LicenseComments  string          `json:"licenseComments,omitempty"`
	CopyrightText    string          `json:"copyrightText"`
	ExternalRefs     []spdxReference `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxReference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func newSPDXPackage(id, name, version, purl string) spdxPackage {
	p := spdxPackage{
		SPDXID: "SPDXRef-" + notInID.ReplaceAllString(id, "-"), Name: name, VersionInfo: version,
		DownloadLocation: "NOASSERTION", LicenseConcluded: "NOASSERTION", LicenseDeclared: "NOASSERTION", CopyrightText: "NOASSERTION",
	}
	if purl != "" {
		p.ExternalRefs = []spdxReference{{Category: "PACKAGE-MANAGER", Type: "purl", Locator: purl}}
	}
	return p
}

// sbom lists what an image contains: Debian packages, programs, and the Go modules that programs are built from.
func (b *builder) sbom(img *image) ([]byte, error) {
	doc := spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT",
		Name: img.reference + " " + img.platform,
		// A name, not an address: it is unique because the digest is.
		DocumentNamespace: "https://ironlb.io/spdx/" + img.spec.Name + "-" + img.digest.Hex,
		CreationInfo:      spdxCreation{Created: b.when.Format("2006-01-02T15:04:05Z"), Creators: []string{"Tool: ironlb-images"}},
	}
	relate := func(from, kind, to string) {
		doc.Relationships = append(doc.Relationships, spdxRelationship{from, kind, to})
	}
	root := newSPDXPackage("Image", img.reference, img.digest.String(), "")
	root.Purpose = "CONTAINER"
	root.Checksums = []spdxChecksum{{"SHA256", img.digest.Hex}}
	doc.Packages = append(doc.Packages, root)
	relate(doc.SPDXID, "DESCRIBES", root.SPDXID)
	for _, in := range img.installed {
		p := newSPDXPackage("deb-"+in.Name, in.Name, in.Version, debianPURL(in))
		p.Supplier, p.Summary = "Organization: Debian", in.Summary
		p.SourceInfo = fmt.Sprintf("built from source package %s %s", in.Source, in.SourceVersion)
		p.Checksums = []spdxChecksum{{"SHA256", in.SHA256}}
		p.LicenseComments = fmt.Sprintf("/usr/share/doc/%s/copyright in the image", in.Name)
		doc.Packages = append(doc.Packages, p)
		relate(root.SPDXID, "CONTAINS", p.SPDXID)
	}
	known := map[string]bool{}
	for _, prog := range img.programs {
		p := newSPDXPackage("program-"+prog.Path, path.Base(prog.Path), tagOf(img.reference), "")
		p.Purpose = "APPLICATION"
		p.Checksums = []spdxChecksum{{"SHA256", prog.sum}}
		doc.Packages = append(doc.Packages, p)
		relate(root.SPDXID, "CONTAINS", p.SPDXID)
		for _, m := range modulesOf(prog, tagOf(img.reference)) {
			dep := newSPDXPackage("go-"+m.path+"-"+m.version, m.path, m.version, goPURL(m))
			dep.LicenseDeclared = cmp.Or(img.licenses[m.path].id, dep.LicenseDeclared)
			if !known[dep.SPDXID] {
				known[dep.SPDXID] = true
				doc.Packages = append(doc.Packages, dep)
			}
			relate(p.SPDXID, "DEPENDS_ON", dep.SPDXID)
		}
	}
	return json.MarshalIndent(doc, "", " ")
}

type module struct{ path, version string }

// modulesOf lists the modules that a program is built from, with Go's standard library.
func modulesOf(prog built, version string) []module {
	if prog.info == nil {
		return nil
	}
	out := []module{{stdlib, strings.TrimPrefix(prog.info.GoVersion, "go")}}
	if main := prog.info.Main; main.Path != "" {
		if main.Version == "" || main.Version == "(devel)" {
			main.Version = version
		}
		out = append(out, module{main.Path, main.Version})
	}
	for _, d := range prog.info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		out = append(out, module{d.Path, d.Version})
	}
	slices.SortFunc(out, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return out
}

// debianPURL and goPURL follow https://github.com/package-url/purl-spec.
func debianPURL(in installed) string {
	return fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", purlEscape(in.Name), purlEscape(in.Version), in.Arch)
}

func goPURL(m module) string {
	var parts []string
	for p := range strings.SplitSeq(m.path, "/") {
		parts = append(parts, purlEscape(p))
	}
	return "pkg:golang/" + strings.Join(parts, "/") + "@" + purlEscape(m.version)
}

func purlEscape(s string) string { return strings.ReplaceAll(url.PathEscape(s), "+", "%2B") }

// attachSBOM adds an image's SBOM to the layout, as a referrer of the image, and writes it to a file.
func (b *builder) attachSBOM(p layout.Path, img *image) error {
	data, err := b.sbom(img)
	if err != nil {
		return err
	}
	if err := writeFile(b.sbomFile(img.spec, img.platform), data); err != nil {
		return err
	}
	subject, err := img.descriptor()
	if err != nil {
		return err
	}
	subject.Platform = nil
	content, config := static.NewLayer(data, mediaTypeSPDX), static.NewLayer([]byte("{}"), mediaTypeEmpty)
	m := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: mediaTypeSPDX, Subject: &subject,
		Annotations: map[string]string{"org.opencontainers.image.created": b.when.Format("2006-01-02T15:04:05Z")},
	}
	for l, to := range map[v1.Layer]*v1.Descriptor{content: {}, config: &m.Config} {
		if to.Digest, err = l.Digest(); err != nil {
			return err
		}
		if to.Size, err = l.Size(); err != nil {
			return err
		}
		if to.MediaType, err = l.MediaType(); err != nil {
			return err
		}
		if l == content {
			m.Layers = []v1.Descriptor{*to}
		}
		r, err := l.Compressed()
		if err != nil {
			return err
		}
		if err := p.WriteBlob(to.Digest, r); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	manifest := static.NewLayer(raw, types.OCIManifestSchema1)
	digest, err := manifest.Digest()
	if err != nil {
		return err
	}
	r, err := manifest.Compressed()
	if err != nil {
		return err
	}
	if err := p.WriteBlob(digest, r); err != nil {
		return err
	}
	return p.AppendDescriptor(v1.Descriptor{
		MediaType: types.OCIManifestSchema1, Digest: digest, Size: int64(len(raw)), ArtifactType: mediaTypeSPDX,
		Annotations: map[string]string{annotationSBOMOf: img.reference},
	})
}
