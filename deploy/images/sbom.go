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
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
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

// newSPDX returns a document that describes one package. The digest makes its namespace unique: a name, not an address.
func newSPDX(name, what, digest string, root spdxPackage, when time.Time) *spdxDocument {
	d := &spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: name,
		DocumentNamespace: "https://ironlb.io/spdx/" + what + "-" + digest,
		CreationInfo:      spdxCreation{Created: when.Format(time.RFC3339), Creators: []string{"Tool: ironlb-images"}},
	}
	root.Checksums = []spdxChecksum{{"SHA256", digest}}
	d.add(d.SPDXID, "DESCRIBES", root)
	return d
}

// add adds a package, unless the document has it, and its relation to another one.
func (d *spdxDocument) add(from, kind string, p spdxPackage) {
	if !slices.ContainsFunc(d.Packages, func(have spdxPackage) bool { return have.SPDXID == p.SPDXID }) {
		d.Packages = append(d.Packages, p)
	}
	d.Relationships = append(d.Relationships, spdxRelationship{from, kind, p.SPDXID})
}

// program adds a program that root contains, and the Go modules that it is built from.
func (d *spdxDocument) program(root string, prog built, version string, licenses map[string]licensed) {
	p := newSPDXPackage("program-"+prog.Path, path.Base(prog.Path), version, "")
	p.Purpose = "APPLICATION"
	p.Checksums = []spdxChecksum{{"SHA256", prog.sum}}
	d.add(root, "CONTAINS", p)
	for _, m := range modulesOf(prog, version) {
		dep := newSPDXPackage("go-"+m.path+"-"+m.version, m.path, m.version, goPURL(m))
		dep.LicenseDeclared = cmp.Or(licenses[m.path].id, dep.LicenseDeclared)
		d.add(p.SPDXID, "DEPENDS_ON", dep)
	}
}

// sbom lists what an image contains: Debian packages, programs, and the Go modules that programs are built from.
func (b *builder) sbom(img *image) ([]byte, error) {
	root := newSPDXPackage("Image", img.reference, img.digest.String(), "")
	root.Purpose = "CONTAINER"
	doc := newSPDX(img.reference+" "+img.platform, img.spec.Name, img.digest.Hex, root, b.when)
	for _, in := range img.installed {
		p := newSPDXPackage("deb-"+in.Name, in.Name, in.Version, debianPURL(in.debPackage))
		p.Supplier, p.Summary = "Organization: Debian", in.Summary
		p.SourceInfo = fmt.Sprintf("built from source package %s %s", in.Source, in.SourceVersion)
		p.Checksums = []spdxChecksum{{"SHA256", in.SHA256}}
		p.LicenseComments = fmt.Sprintf("/usr/share/doc/%s/copyright in the image", in.Name)
		doc.add(root.SPDXID, "CONTAINS", p)
	}
	for _, prog := range img.programs {
		doc.program(root.SPDXID, prog, tagOf(img.reference), img.licenses)
	}
	return json.MarshalIndent(doc, "", " ")
}

type module struct{ path, version string }

func compareModules(a, b module) int {
	return cmp.Or(strings.Compare(a.path, b.path), strings.Compare(a.version, b.version))
}

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
	slices.SortFunc(out, compareModules)
	return out
}

// debianPURL and goPURL follow https://github.com/package-url/purl-spec.
func debianPURL(p debPackage) string {
	return fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", purlEscape(p.Name), purlEscape(p.Version), p.Arch)
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
	return writeArtifact(p, v1.Manifest{
		ArtifactType: mediaTypeSPDX, Subject: &subject,
		Annotations: map[string]string{"org.opencontainers.image.created": b.when.Format(time.RFC3339)},
	}, blob{mediaTypeEmpty, []byte("{}")}, blob{mediaTypeSPDX, data}, map[string]string{annotationSBOMOf: img.reference})
}
