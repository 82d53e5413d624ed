# Runs a Homebrew formula without Homebrew.
#
# Usage: ruby --disable=gems formula.rb FORMULA SOURCE PREFIX PYTHON
#
# SOURCE is the unpacked source distribution, PREFIX an empty directory, and PYTHON the directory whose
# bin contains `python`. Runs `install` and the test of the formula, and prints its metadata.

# A path with the operators of Homebrew's Pathname that formulas use.
class FormulaPath < String
  def /(name)
    FormulaPath.new("#{self}/#{name}")
  end

  def install_symlink(target)
    Dir.mkdir(self)
    File.symlink(target, "#{self}/#{File.basename(target)}")
  end
end

# Replacement of Homebrew's base class.
class Formula
  Dependency = Struct.new(:opt_libexec)
  METADATA = {}

  class << self
    attr_reader :formula

    def inherited(formula)
      super
      @formula = formula
    end

    %i[desc homepage url sha256 license depends_on].each do |name|
      define_method(name) { |value| METADATA[name] = value }
    end

    def service(&block)
      define_method(:service, &block)
    end

    def test(&block)
      define_method(:check, &block)
    end

    def [](_name)
      Dependency.new(FormulaPath.new(ARGV[3]))
    end
  end

  def buildpath
    FormulaPath.new(ARGV[1])
  end

  def libexec
    FormulaPath.new(ARGV[2]) / "libexec"
  end

  def bin
    FormulaPath.new(ARGV[2]) / "bin"
  end
  alias opt_bin bin

  def var
    FormulaPath.new(ARGV[2]) / "var"
  end

  def system(*command)
    super(*command.map(&:to_s)) || raise("#{command.join(" ")} failed")
  end

  def shell_output(command)
    output = `#{command}`
    $?.success? ? output : raise("#{command} failed: #{output}")
  end

  def assert_match(pattern, text)
    text.match?(pattern) || raise("#{pattern} is not in #{text}")
  end

  # Entries of `service`.
  def run(command)
    puts "service #{command.join(" ")}"
  end

  %i[keep_alive log_path error_log_path].each do |name|
    define_method(name) { |_value| }
  end
end

load ARGV[0]
kbroker = Formula.formula.new
kbroker.install
kbroker.check
kbroker.service
Formula::METADATA.each { |name, value| puts "#{name} #{value}" }
