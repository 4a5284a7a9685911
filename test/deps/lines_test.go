package deps

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// longest is the number of characters of a line of prose.
const longest = 120

var (
	generated = regexp.MustCompile(`(?m)^// Code generated |^docs/reference/api\.md$`)
	// directive is a comment for a program, which it reads line by line.
	directive = regexp.MustCompile(`^\s*//(\S| \+)`)
	comment   = regexp.MustCompile(`^\s*//`)
	// unbroken is a line of Markdown without a place to break it: of a table, or with an address.
	unbroken = regexp.MustCompile(`^\s*\||https?://`)
)

// TestLines: lines of prose, in comments of Go code and in Markdown, have at most 120 characters.
func TestLines(t *testing.T) {
	for file, text := range tracked(t) {
		if strings.Contains(file, "/testdata/") || generated.MatchString(file) || generated.MatchString(text) {
			continue
		}
		var prose func(line string) bool
		switch {
		case strings.HasSuffix(file, ".go"):
			prose = func(line string) bool { return comment.MatchString(line) && !directive.MatchString(line) }
		case strings.HasSuffix(file, ".md"):
			code := false
			prose = func(line string) bool {
				if strings.HasPrefix(strings.TrimSpace(line), "```") {
					code = !code
				}
				return !code && !unbroken.MatchString(line)
			}
		default:
			continue
		}
		for i, line := range strings.Split(text, "\n") {
			if n := utf8.RuneCountInString(line); prose(line) && n > longest {
				t.Errorf("%s:%d: %d characters, want at most %d", file, i+1, n, longest)
			}
		}
	}
}
