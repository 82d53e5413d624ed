# Formula for a Homebrew tap. `python -m release.homebrew` replaces the words in angle brackets.
class Kbroker < Formula
  desc "Kafka broker in Python"
  homepage "<HOMEPAGE>"
  url "<URL>"
  sha256 "<SHA256>"
  license "Apache-2.0"

  depends_on "python@3.13"

  def install
    python = Formula["python@3.13"].opt_libexec/"bin/python"
    system python, "-m", "venv", libexec
    system libexec/"bin/python", "-m", "pip", "install", "--quiet", "#{buildpath}[console]"
    bin.install_symlink libexec/"bin/kbroker"
  end

  service do
    run [opt_bin/"kbroker", "serve", "--data-dir", var/"kbroker"]
    keep_alive true
    log_path var/"log/kbroker.log"
    error_log_path var/"log/kbroker.log"
  end

  test do
    script = "kbroker topic produce hello hi && kbroker topic consume hello -o :end"
    output = shell_output("PATH=#{bin}:$PATH kbroker run --topic hello -- sh -c '#{script}'")
    assert_match "hi", output
  end
end
