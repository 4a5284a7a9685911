package bfd

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets more tests run at once than there are cores, unless the flag says how many: what they do is wait.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "8")
	}
	os.Exit(m.Run())
}
