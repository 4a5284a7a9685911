package deps

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	variable   = regexp.MustCompile(`(?m)^([A-Z_0-9]+) *:?=(.*)$`)
	selection  = regexp.MustCompile(` -(?:run|skip|bench) ('[^']*'|[^ ]+)`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w*)\(`)
	inTestFlag = regexp.MustCompile(` (\./\S+)`)
)

// TestNamesInMakefile: each test that a -run, -skip or -bench of the makefiles names exists in the packages of its
// command, and so does each subtest in some file. A name that matches nothing would select or skip nothing.
func TestNamesInMakefile(t *testing.T) {
	files := tracked(t)
	text, commands := files["Makefile"]+files["test.mk"]+files["bench.mk"], 0
	for range 2 { // variables may refer to others
		for _, v := range variable.FindAllStringSubmatch(text, -1) {
			text = strings.ReplaceAll(text, "$("+v[1]+")", strings.TrimSpace(v[2]))
		}
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "\t") {
			continue
		}
		var tests []string
		for _, m := range inTestFlag.FindAllStringSubmatch(line, -1) {
			tests = append(tests, testsOf(files, m[1])...)
		}
		for _, m := range selection.FindAllStringSubmatch(line, -1) {
			commands++
			for _, one := range alternatives(strings.ReplaceAll(strings.Trim(m[1], "'"), "$$", "$")) {
				name, sub, _ := strings.Cut(one, "/")
				if name != "^$" && !anyMatches(tests, regexp.MustCompile(name)) {
					t.Errorf("no test matches %q in: %s", name, line)
				}
				for _, s := range strings.Split(sub, "/") {
					quoted := regexp.MustCompile(`"[^"\n]*` + strings.ReplaceAll(s, "_", "[_ ]"))
					if s != "" && !anyFile(files, quoted) {
						t.Errorf("no subtest matches %q in: %s", s, line)
					}
				}
			}
		}
	}
	if commands < 10 {
		t.Errorf("found %d selections in the makefiles, want at least 10", commands)
	}
}

// TestAlternatives: an expression of the Makefile is the list of its names.
func TestAlternatives(t *testing.T) {
	const expression = "^Test(A|B(C|D))$|TestE/((x|y)_z|w)"
	want := "^TestA$ ^TestBC$ ^TestBD$ TestE/x_z TestE/y_z TestE/w"
	if have := strings.Join(alternatives(expression), " "); have != want {
		t.Errorf("%s: have %s, want %s", expression, have, want)
	}
}

// alternatives expands the groups of a regular expression that has no other operators but ^ and $.
func alternatives(expression string) (all []string) {
	depth, begin, open := 0, 0, -1
	for i, c := range expression + "|" {
		switch {
		case c == '(':
			if depth++; depth == 1 && open < 0 {
				open = i
			}
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			all, begin, open = append(all, expand(expression[begin:i], open-begin)...), i+1, -1
		}
	}
	return all
}

// expand returns the names of an expression whose first group begins at an index, if that is not negative.
func expand(expression string, open int) (all []string) {
	if open < 0 {
		return []string{expression}
	}
	end, depth := open, 0
	for ; end == open || depth > 0; end++ {
		switch expression[end] {
		case '(':
			depth++
		case ')':
			depth--
		}
	}
	for _, one := range alternatives(expression[open+1 : end-1]) {
		all = append(all, alternatives(expression[:open]+one+expression[end:])...)
	}
	return all
}

// testsOf lists the tests of a package, or with /... of all packages below a folder.
func testsOf(files map[string]string, pattern string) (names []string) {
	dir, below := strings.CutSuffix(path.Clean(pattern), "/...")
	for file, text := range files {
		if strings.HasSuffix(file, "_test.go") && (path.Dir(file) == dir || below && strings.HasPrefix(file, dir+"/")) {
			for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
				names = append(names, m[1])
			}
		}
	}
	return names
}

func anyMatches(names []string, re *regexp.Regexp) bool {
	for _, n := range names {
		if re.MatchString(strings.TrimPrefix(n, "Benchmark")) || re.MatchString(n) {
			return true
		}
	}
	return false
}

func anyFile(files map[string]string, re *regexp.Regexp) bool {
	for name, text := range files {
		if strings.HasSuffix(name, ".go") && re.MatchString(text) {
			return true
		}
	}
	return false
}

// tracked returns the text files of the repository, by their path.
func tracked(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("no git repository: %v", err)
	}
	files := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join("../..", name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted and not committed yet
		case err != nil:
			t.Fatal(err)
		case utf8.Valid(text):
			files[name] = string(text)
		}
	}
	if len(files) < 100 {
		t.Fatalf("got %d files, want the repository", len(files))
	}
	return files
}
