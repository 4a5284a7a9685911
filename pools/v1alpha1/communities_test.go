package v1alpha1

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestParseCommunity(t *testing.T) {
	for text, want := range map[string]CommunityValue{
		"65000:1":                         {Parts: [3]uint32{65000, 1}},
		"0:0":                             {},
		"65535:65535":                     {Parts: [3]uint32{65535, 65535}},
		"large:64512:4294967295:0":        {Large: true, Parts: [3]uint32{64512, 4294967295, 0}},
		"large:4294967295:0:4294967295":   {Large: true, Parts: [3]uint32{4294967295, 0, 4294967295}},
		"large:4200000000:100:4200000001": {Large: true, Parts: [3]uint32{4200000000, 100, 4200000001}},
	} {
		if got, err := ParseCommunity(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1", "1:", ":1", "1:2:3", "65536:1", "1:65536", "01:1", "+1:1", "1:-1", " 1:1", "large:1:2", "large:1:2:3:4", "large:1:2:4294967296",
		"large:large:1:2", "Large:1:2:3", "gold"} {
		if got, err := ParseCommunity(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

// FuzzParseCommunity: what is read is written in the form of the kinds' rules, and is that text's only meaning.
func FuzzParseCommunity(f *testing.F) {
	for _, text := range []string{"65000:1", "large:1:2:3", "01:1", "large:4294967296:0:0", "a:b", "65535:65536"} {
		f.Add(text)
	}
	form := regexp.MustCompile(`^((0|[1-9][0-9]{0,4}):(0|[1-9][0-9]{0,4})|large(:(0|[1-9][0-9]{0,9})){3})$`) // as in the kinds
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseCommunity(text)
		if err != nil {
			return
		}
		back := fmt.Sprintf("%d:%d", got.Parts[0], got.Parts[1])
		if got.Large {
			back = fmt.Sprintf("large:%d:%d:%d", got.Parts[0], got.Parts[1], got.Parts[2])
		}
		if back != text || !form.MatchString(text) || CommunityName(text) || got.Large != strings.HasPrefix(text, "large:") {
			t.Errorf("%q is read as %+v, which is %s", text, got, back)
		}
	})
}
