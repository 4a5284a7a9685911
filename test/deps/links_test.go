package deps

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#{1,6} (.*)$`)
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	docPath   = regexp.MustCompile(`\bdocs/[a-z0-9/_.-]*\.(?:md|yaml|svg)\b`)
)

// TestLinks: each link of a document leads to a file of the repository, and to a heading in it.
func TestLinks(t *testing.T) {
	files, links := tracked(t), 0
	for name, text := range files {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.ContainsAny(target, "[]*") { // a regular expression
				continue
			}
			links++
			file := name
			if target != "" {
				file = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", name, m[1])
				continue
			}
			if anchor != "" && path.Ext(file) == ".md" && !anchors(files[file])[anchor] {
				t.Errorf("%s: %s has no heading #%s", name, file, anchor)
			}
		}
	}
	if links < 300 {
		t.Errorf("found %d links, want those of all documents", links)
	}
}

// TestDocumentsExist: each document that code, the chart or another file names by its path exists.
func TestDocumentsExist(t *testing.T) {
	for name, text := range tracked(t) {
		if name == "CHANGELOG.md" { // earlier versions had other documents
			continue
		}
		for _, m := range docPath.FindAllStringIndex(text, -1) {
			document := text[m[0]:m[1]]
			if before := text[:m[0]]; strings.HasSuffix(before, "/") && !strings.HasSuffix(before, "../") && !strings.HasSuffix(before, "/main/") {
				continue // of another project
			}
			if _, err := os.Stat(filepath.Join("../..", document)); err != nil {
				t.Errorf("%s names %s, which does not exist", name, document)
			}
		}
	}
}

// anchors returns the anchors of a document's headings, as GitHub makes them.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		out[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			default:
				return -1
			}
		}, m[1])] = true
	}
	return out
}
